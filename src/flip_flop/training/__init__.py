"""Training: settings, trainer, and runs that can be killed and resumed."""
