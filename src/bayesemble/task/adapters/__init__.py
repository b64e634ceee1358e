"""Pretrained networks: adapters on a frozen backbone, which stands still and is computed once for all members."""
