"""What the candidates of a run go through: granting, building, measuring, the final round; how much of them is under
way, and what the devices do meanwhile."""
