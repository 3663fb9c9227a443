"""A cooperating writer and a plain reader of partition directories (architecture section 2)."""
