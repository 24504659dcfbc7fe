"""Balances the passes of workers (FSP §4): decides how many points move from slow workers to fast
ones, and gives the reason.
"""
