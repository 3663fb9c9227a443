"""Stand-ins for the world: a disk that can lose power, a broker that starts."""
