"""What each method is in a scope, and how it is guarded there."""
