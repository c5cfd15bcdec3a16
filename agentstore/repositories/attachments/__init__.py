"""Attachments, and the bytes behind them."""
