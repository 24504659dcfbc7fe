"""How far a job has come: its goals, its objective, whether it learns, and the totals in the
journal.
"""
