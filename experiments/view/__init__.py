"""What groups a text's tokens are in, as a page."""
