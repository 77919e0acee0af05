"""The search: Optuna trials over placements, run in Ray workers."""
