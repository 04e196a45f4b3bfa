"""The rules of a queue that do not depend on where its jobs are stored.

lanes  which ready jobs a claim hands out: gates, classes and their turns
order  the heap behind them
"""
