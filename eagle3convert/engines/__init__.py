"""Packages that run inside an engine and teach it what it cannot say itself."""
