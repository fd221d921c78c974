"""Reading drafter checkpoints by their headers and writing safetensors with bytes moved by the kernel.

Nothing in this package imports more than the standard library when it is imported: a conversion that only
renames tensors never pays for numpy or torch.
"""
