"""Settings, checks, the installation: what all other parts stand on."""
