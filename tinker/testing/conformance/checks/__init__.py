"""The checks, by what they are about. Each is a function whose docstring says what must hold."""
