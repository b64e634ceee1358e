"""Published sets of images as they are published: CIFAR, ImageNet, and their corrupted versions."""
