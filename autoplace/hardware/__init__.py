"""The machine: devices, links, budgets, and the ledger that enforces them."""
