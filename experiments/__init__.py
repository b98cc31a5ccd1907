"""What is run: one short module a stage, settings from params.yaml."""
