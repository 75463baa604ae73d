"""Sources of pictures, each a frozen dataclass registered in `core.data.DATASETS`, and the splits drawn from them."""
