"""The pages, one module each. Pure: data in, HTML out."""
