"""What Hugging Face's Trainer posts to Kubeflow's is a step here."""

from __future__ import annotations

import json
import mmap
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from agent.monitor.progress import ProgressFiles
from agent.monitor.stepping import Start
from agent.monitor.trainer_status import ENV_TOKEN, ENV_URL, reached_directly, step_of
from agent.warm.step_counter import counting_hook
from crds.progress_record import ENV_PROGRESS_FILE


def posted(**metrics: object) -> bytes:
    """A post as transformers' KubeflowCallback makes it (transformers pull request 44487)."""
    told = [{"name": name, "value": str(value)} for name, value in metrics.items()]
    status = {"lastUpdatedTime": "2026-01-01T00:00:00+00:00", "progressPercentage": 4, "metrics": told}
    return json.dumps({"trainerStatus": status}).encode()


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Iterator[ProgressFiles]:
    monkeypatch.delenv(ENV_URL, raising=False)
    found = ProgressFiles()
    yield found
    found.remove()


def post(env: dict[str, str], body: bytes, token: str | None = None) -> int:
    token = Path(env[ENV_TOKEN]).read_text().strip() if token is None else token
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(env[ENV_URL], data=body, headers=headers, method="POST")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_a_posted_step_is_what_training_has_reached(files: ProgressFiles) -> None:
    (env,) = files.renew(1, Start())
    assert post(env, posted(loss=0.5, current_step=40, total_steps=1000, current_epoch=0.1)) == 200
    newest = files.read().newest
    assert newest is not None and newest.step == 40
    assert files.read_rank(0).step == 40 and files.read_rank(0).reports_steps


def test_a_count_has_the_last_steps_which_posts_miss(files: ProgressFiles) -> None:
    (env,) = files.renew(1, Start())
    with Path(env[ENV_PROGRESS_FILE]).open("r+b") as file:
        hook = counting_hook(memoryview(mmap.mmap(file.fileno(), 0)))
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])
    for _ in range(20):
        hook(optimizer, (), {})
    post(env, posted(current_step=15))
    told = files.read()
    assert told.newest is not None and told.newest.step == 20 and told.counted
    assert files.read_rank(0).step == 20


def test_it_is_of_its_start_alone(files: ProgressFiles) -> None:
    (env,) = files.renew(1, Start())
    post(env, posted(current_step=40))
    assert files.renew(1, Start()) == [env], "the address stays"
    assert files.read().newest is None


def test_only_who_has_the_token_may_tell(files: ProgressFiles) -> None:
    (env,) = files.renew(1, Start())
    assert Path(env[ENV_TOKEN]).stat().st_mode & 0o077 == 0
    assert post(env, posted(current_step=40), token="another") == 401
    assert files.read().newest is None


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"no json", b"[]", b'{"trainerStatus": {}}', posted(loss=1), posted(current_step="many")),
        *(posted(current_step=-1), posted(current_step="nan"), posted(current_step="inf")),
    ],
)
def test_what_tells_no_step_is_taken_and_tells_none(files: ProgressFiles, body: bytes) -> None:
    (env,) = files.renew(1, Start())
    assert post(env, body) == 200
    assert files.read().newest is None


def test_no_name_server_is_asked_at_a_start(files: ProgressFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(*_: object) -> None:
        raise AssertionError("it may take many seconds")

    monkeypatch.setattr(socket, "getfqdn", ask)
    (env,) = files.renew(1, Start())
    assert post(env, posted(current_step=40)) == 200


def test_too_much_is_refused(files: ProgressFiles) -> None:
    (env,) = files.renew(1, Start())
    assert post(env, b" " * 100_000) == 413


def test_the_users_own_server_is_left_to_them(files: ProgressFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_URL, "https://theirs")
    (env,) = files.renew(1, Start())
    assert ENV_URL not in env


def test_step_is_a_whole_number_however_it_is_written() -> None:
    assert [step_of(posted(current_step=text)) for text in (7, "7", "7.0")] == [7, 7, 7]
    assert step_of(b"[" * 60_000) is None


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({}, {}),
        ({"no_proxy": "x"}, {}),
        ({"https_proxy": "http://proxy:1"}, {}),
        ({"HTTP_PROXY": "http://proxy:1"}, {"no_proxy": "127.0.0.1"}),
        ({"ALL_PROXY": "http://proxy:1", "NO_PROXY": ".here"}, {"no_proxy": ".here,127.0.0.1"}),
        ({"http_proxy": "http://proxy:1", "NO_PROXY": ".here", "no_proxy": ""}, {"no_proxy": "127.0.0.1"}),
        ({"http_proxy": "http://proxy:1", "no_proxy": "*"}, {}),
    ],
)
def test_a_proxy_is_kept_out_of_the_way(environ: dict[str, str], says: dict[str, str]) -> None:
    assert reached_directly(environ) == says


def test_a_post_goes_to_the_agent_though_the_environment_names_a_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("no_proxy", "NO_PROXY", ENV_URL):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # discard: nobody listens
    files = ProgressFiles()
    try:
        (env,) = files.renew(1, Start())
        monkeypatch.setenv("no_proxy", env["no_proxy"])
        token = Path(env[ENV_TOKEN]).read_text()
        headers = {"Authorization": f"Bearer {token}"}
        request = urllib.request.Request(env[ENV_URL], posted(current_step=7), headers, method="POST")
        opener = urllib.request.build_opener()
        with opener.open(request, timeout=30) as answer:
            assert answer.status == 200
        assert files.read_rank(0).step == 7
    finally:
        files.remove()
