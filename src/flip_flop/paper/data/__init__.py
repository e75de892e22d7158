"""The paper's datasets and PromptSource's templates, as tasks and commands of ``flip-flop``."""
