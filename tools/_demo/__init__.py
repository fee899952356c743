"""What tools/demo.py and tools/bench.py share: a model, texts, fitted projectors, a server."""
