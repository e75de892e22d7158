"""Training: settings, trainer, runs that can be killed and resumed."""

from flip_flop.training.config import F2CConfig, make_config
from flip_flop.training.run import TrainingRun, train
from flip_flop.training.trainer import F2CTrainer

__all__ = ["F2CConfig", "F2CTrainer", "TrainingRun", "make_config", "train"]
