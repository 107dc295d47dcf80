"""The code generator: reads openapi.yaml; writes the bindings and the coverage table, and compares
two documents.
"""
