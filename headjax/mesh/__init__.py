"""The device mesh: its axes, the sharding rules, several processes, activations and random bits."""
