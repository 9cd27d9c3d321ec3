# Names and error messages shared by these scripts. Sourced, not run.

set -euo pipefail

REPOSITORY="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
CLUSTER="${KIND_CLUSTER:-dlr}"
[[ $(<"$REPOSITORY/crds/release.py") =~ VERSION\ =\ \"([^\"]+)\" ]] && VERSION="${BASH_REMATCH[1]}"
CONTROLLER_IMAGE="dlr-controller:$VERSION"
WORKER_IMAGE="dlr-worker:$VERSION"
AGENT_IMAGE="dlr-agent:$VERSION"
EXAMPLES_IMAGE="dlr-examples:latest"

# require PROGRAM WHAT-IT-IS-FOR
require() {
  command -v "$1" >/dev/null || fail "$1 is not installed, and $2 needs it."
}

require_docker() {
  require docker "$1"
  docker info >/dev/null 2>&1 || fail "Docker is installed but its daemon does not answer; start it first ($1 needs it)."
}

fail() {
  echo "kind/$(basename "$0"): $1" >&2
  exit 1
}
