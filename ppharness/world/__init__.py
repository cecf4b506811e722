"""Processes, groups, devices: launching, waiting, dying."""
