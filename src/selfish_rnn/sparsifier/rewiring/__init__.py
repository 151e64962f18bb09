"""What a sparsifier rewires (matrices), when and how much of it (plan), and by what (scores)."""
