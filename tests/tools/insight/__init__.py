"""Reading logs without cleaning them."""
