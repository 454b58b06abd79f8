"""The device mesh: its axes, the sharding rules, several processes, and random bits."""
