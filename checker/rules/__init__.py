"""What a stage of a proof may say, one family of rules per module."""
