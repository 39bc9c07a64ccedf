"""Tests of jfast-sync: unit, contract, integration, process and fault tests, and the servers they run against."""
