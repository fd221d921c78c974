"""Tests of eagle3convert.checkpoint."""
