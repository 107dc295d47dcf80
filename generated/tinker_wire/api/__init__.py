# generated from openapi.yaml; do not edit
"""One module per tag, one function per operation; import the module you need."""
