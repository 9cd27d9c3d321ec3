"""The Pods of one job can read nothing of another job in the same namespace."""

from __future__ import annotations

import json

import pytest

from e2e import jobs
from e2e.api import Object
from e2e.cluster import Cluster
from e2e.observation import Observation

GROUP = "/apis/elastic.iml.github.io/v1alpha1"

LOOKS_AROUND = """
import json, os, pathlib, ssl, sys, urllib.error, urllib.request

folder = pathlib.Path(
    os.environ.get("DLR_SERVICEACCOUNT_DIR", "/var/run/secrets/kubernetes.io/serviceaccount")
)
found = {"key": os.environ.get("DLR_JOB_KEY"), "token": (folder / "token").exists()}
if found["token"]:
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    trusted = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    trusted.verify_flags &= ~ssl.VERIFY_X509_STRICT
    for path in sys.argv[1:]:
        headers = {"Authorization": "Bearer " + (folder / "token").read_text()}
        request = urllib.request.Request(f"https://{host}:{port}{path}", headers=headers)
        try:
            found[path] = urllib.request.urlopen(request, context=trusted, timeout=300).status
        except urllib.error.HTTPError as error:
            found[path] = error.code
print(json.dumps(found), flush=True)
"""


@pytest.mark.named
def test_pods_of_a_job_have_its_key_and_read_no_other_job(cluster: Cluster, observation: Observation) -> None:
    namespace = observation.namespace
    worlds, jobs_path = (
        f"{GROUP}/namespaces/{namespace}/{kind}" for kind in ("elasticworlds", "elasticjobs")
    )
    own, others = (f"{worlds}?fieldSelector=metadata.name={name}" for name in ("curious", "private"))
    hidden = [
        *(others, worlds, f"{worlds}/private"),
        *(jobs_path, f"{jobs_path}?fieldSelector=metadata.name=curious", f"{jobs_path}/private"),
        f"{GROUP}/namespaces/{namespace}/elasticworkers/private-worker-0",
        f"/api/v1/namespaces/{namespace}/secrets",
        f"/api/v1/namespaces/{namespace}/pods",
    ]
    cluster.apply(jobs.shell(cluster, "sleep 600", name="private"), namespace)
    manifest = jobs.shell(cluster, "", name="curious")
    spec = manifest["spec"]["replicaSpecs"]["worker"]["template"]["spec"]
    (main,) = spec["containers"]
    words = ["/bin/sh", "-c", 'python3 -c "$@" && exec sleep 600', "sh", LOOKS_AROUND, own, *hidden]
    main["command"] = words
    spec["containers"] = [main, {"name": "sidecar", "image": main["image"], "command": words}]
    cluster.apply(manifest, namespace)

    def access_of(container: str) -> Object:
        logs = ("logs", "curious-worker-0-1", "-n", namespace, "-c", container)
        text = observation.wait_for(
            f"what {container} sees", lambda: cluster.kubectl(*logs, check=False).stdout
        )
        found: Object = json.loads(text)
        return found

    seen = access_of("main")
    assert len(bytes.fromhex(seen.pop("key"))) == 32 and seen.pop("token")
    assert seen == {own: 200, **dict.fromkeys(hidden, 403)}
    assert access_of("sidecar") == {"key": None, "token": False}
    job = observation.job("curious")
    uid = job["metadata"]["uid"]
    made = [f"serviceaccount/dlr-{uid}", f"role/dlr-{uid}", f"rolebinding/dlr-{uid}"]
    made += [f"secret/dlr-key-{uid}", f"networkpolicy/dlr-{uid}"]
    cluster.kubectl("get", *made, "-n", namespace)
    cluster.kubectl("delete", "ej", "curious", "-n", namespace)

    def left() -> str:
        return cluster.kubectl("get", *made, "-n", namespace, "-o", "name", check=False).stdout

    observation.wait_for("what the job had to go", lambda: not left())
