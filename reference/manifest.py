"""docs/scale-mpijob.yaml against the schema of the MPI Operator: no cluster is needed.

  pip install -r reference/requirements.txt
  curl -LO https://raw.githubusercontent.com/kubeflow/mpi-operator/v0.8.0/manifests/base/kubeflow.org_mpijobs.yaml
  python reference/manifest.py kubeflow.org_mpijobs.yaml

A key that the schema does not know is an error too, as it is to `kubectl apply` with strict validation.
"""
import sys
from pathlib import Path

import jsonschema
import yaml


def closed(schema):
    """The schema, where objects with named properties take no others."""
    if isinstance(schema, dict):
        schema = {key: closed(value) for key, value in schema.items()}
        named = isinstance(schema.get("properties"), dict) and schema.get("type") == "object"
        if named and not schema.get("x-kubernetes-preserve-unknown-fields"):
            schema.setdefault("additionalProperties", False)
    return [closed(value) for value in schema] if isinstance(schema, list) else schema


def faults(job, versions):
    version = job["apiVersion"].rpartition("/")[2]
    schema = next(v["schema"]["openAPIV3Schema"] for v in versions if v["name"] == version)
    # the schema leaves `metadata` open: it is Kubernetes' own
    schema["properties"].pop("metadata", None)
    job = {key: value for key, value in job.items() if key != "metadata"}
    return sorted(jsonschema.Draft4Validator(closed(schema)).iter_errors(job), key=lambda fault: list(fault.path))


definition = yaml.safe_load(Path(sys.argv[1]).read_text())
manifest = Path(__file__).parent.parent / "docs" / "scale-mpijob.yaml"
job = yaml.safe_load(manifest.read_text())
found = faults(job, definition["spec"]["versions"])
for fault in found:
    print("/".join(map(str, fault.path)), fault.message[:200])
# a check that cannot fail is none
wrong = yaml.safe_load(manifest.read_text().replace("slotsPerWorker: 1", "slotsPerWorker: one").replace("command:",
    "comand:"))
assert len(faults(wrong, definition["spec"]["versions"])) >= 3
print(f"{manifest.name}: {len(found)} faults by {definition['metadata']['name']}, {job['apiVersion']}")
sys.exit(bool(found))
