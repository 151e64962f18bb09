"""What runs came to and how their topologies moved: reads records and topologies, trains nothing."""
