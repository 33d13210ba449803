#!/bin/sh
# What /openapi.json of a running server describes, tried by schemathesis (https://schemathesis.readthedocs.io):
# requests that fit the schema and requests that do not, in every field. An answer must be one that the schema has, no
# fault of the server, and an error where the request does not fit.
#
#   python3 -m venv /tmp/venv && /tmp/venv/bin/pip install 'schemathesis>=4'
#   limpid serve --model runs/stories &
#   PATH=/tmp/venv/bin:$PATH sh reference/schemathesis.sh http://127.0.0.1:8080
set -eu
url=${1:?the address of a server}
shift
# a body that fits may be refused for what no schema says: the model's context, its ids, one parameter beside another
exec schemathesis run "$url/openapi.json" --url "$url" --checks \
  not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,response_schema_conformance,negative_data_rejection,unsupported_method \
  --phases examples,coverage,fuzzing --max-examples 100 --seed 1 "$@"
