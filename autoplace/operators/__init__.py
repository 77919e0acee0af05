"""What rules put in the place of plain modules."""
