"""The Hugging Face Hub: drafters read from it without downloading them, conversions pushed to it safely.

huggingface_hub is imported inside functions only: it takes longer to import than a small conversion takes to run.
"""
