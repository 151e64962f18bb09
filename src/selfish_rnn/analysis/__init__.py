"""Analysis of networks and of run folders: records, topologies, distances, FLOPs, figures and reports."""
