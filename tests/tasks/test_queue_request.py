"""`dlr-queue.pl`: the command line and the logs of Kaldi's queue.pl."""

from __future__ import annotations

import subprocess
import sys
import types
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

FILE = Path(__file__).parents[2] / "examples" / "map" / "dlr-queue.pl"


def loaded() -> Any:
    loader = SourceFileLoader("dlr_queue", str(FILE))
    module = types.ModuleType(loader.name)
    sys.modules[loader.name] = module  # its dataclasses look for it
    loader.exec_module(module)
    return module


queue = loaded()
Request, RequestError, parse, script = queue.Request, queue.RequestError, queue.parse, queue.script
status_in = queue.status_in


def run(request: Any, number: int, folder: Path, **environ: str) -> int:
    path = folder / "job.sh"
    path.write_text(script(request, str(folder), environ))
    return subprocess.run(["/bin/bash", str(path), str(number)], check=False, timeout=300).returncode


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("JOB=1:4 log/x.JOB.log echo JOB", Request("log/x.JOB.log", ("echo", "JOB"), "JOB", 1, 4)),
        ("SDG=3 x.SDG.log a", Request("x.SDG.log", ("a",), "SDG", 3, 3)),
        (
            "--mem 2G JOB=1:2 --num-threads 4 --max-jobs-run 8 --gpu 1 x.JOB.log a -b",
            Request("x.JOB.log", ("a", "-b"), "JOB", 1, 2, "2Gi", 4, 8, 1),
        ),
        ("-q all.q@@xyz -l ram_free=1200M,mem_free=1200M -V -pe smp 5 -sync y x.log a",
         Request("x.log", ("a",), threads=5, with_environment=True)),
        ("-tc 5 --max-jobs-run 3 --mem 0 --config conf/no.conf x.log a", Request("x.log", ("a",), max_jobs=3)),
    ],
)  # fmt: skip
def test_the_command_line_is_read_as_queue_pl_reads_it(words: str, found: Any) -> None:
    assert parse(words.split()) == found


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("JOB=1:4 x.JOB.log", "Usage"),
        ("JOB=1:4 x.log echo", "just one log file"),
        ("JOB=0:4 x.JOB.log echo", "invalid job range JOB=0:4"),
        ("--num-threads many x.log echo", "--num-threads takes a number"),
        ("--mem lots x.log echo", "--mem lots"),
    ],
)
def test_what_makes_no_sense_is_refused(words: str, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        parse(words.split())


@pytest.mark.real
def test_the_log_has_the_lines_that_recipes_read(tmp_path: Path) -> None:
    request = parse(
        ["--num-threads", "2", "JOB=1:9", "exp/log/x.JOB.log", "echo", "a  b", "part-JOB", ";", "exit", "3"]
    )
    assert run(request, 7, tmp_path) == 1
    first, *lines = (tmp_path / "exp/log/x.7.log").read_text().splitlines()
    assert first.startswith("# Running on ")
    assert lines[0].startswith("# Started at ")
    assert lines[1] == '# echo "a  b" part-7 ; exit 3 '
    assert lines[2] == "a  b part-7"
    assert lines[3].startswith("# Accounting: time=") and lines[3].endswith(" threads=2")
    assert lines[4].startswith("# Ended (code 3) at ") and ", elapsed time " in lines[4]
    assert lines[5].startswith("# Finished at ") and lines[5].endswith(" with status 3")
    assert len(lines) == 6


@pytest.mark.real
def test_path_sh_and_the_callers_path_count(tmp_path: Path) -> None:
    (tmp_path / "path.sh").write_text("export KALDI_ROOT=/opt/kaldi\n")
    request = parse(["-V", "x.log", "echo", "$KALDI_ROOT", "$LC_ALL", "$DLR_HOME", "&&", "mine"])
    tools = tmp_path / "my tools"
    tools.mkdir()
    (tools / "mine").write_text("#!/bin/sh\necho from the path\n")
    (tools / "mine").chmod(0o755)
    assert run(request, 1, tmp_path, PATH=str(tools), LC_ALL="C", DLR_HOME="/secret") == 0
    log = (tmp_path / "x.log").read_text().splitlines()
    assert log[3:5] == ["/opt/kaldi C", "from the path"]


@given(st.integers(1, 200), st.integers(0, 40), st.integers(1, 30), st.integers(1, 30), st.integers(0, 2))
def test_no_more_run_at_a_time_than_may(jobs: int, most: int, workers: int, slots: int, gpus: int) -> None:
    request = Request("x.JOB.log", ("a",), "JOB", 1, jobs, max_jobs=most, gpus=gpus)
    allowed = queue.options_of({"DLR_QUEUE": f"--image x --workers 1:{workers} --slots {slots}"})
    pods, of_each = queue.workers_for(request, allowed)
    fewest, highest = map(int, pods.split(":"))
    assert 1 <= fewest <= highest <= workers and 1 <= of_each <= slots
    assert not most or highest * of_each <= most
    assert (highest - 1) * of_each < jobs, "no Pod is without a job"
    assert of_each == 1 or not gpus


def test_the_status_of_a_job_is_in_the_last_lines_of_its_log() -> None:
    log = "# Running on x\n# Finished at noon with status 9\nerror\n# Finished at Mon Nov 23 with status 3\n"
    assert status_in(log) == "3"
    assert status_in("# Running on x\n") == "unknown"
