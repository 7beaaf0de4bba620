"""Pure functions from columns and DataFrames to columns and DataFrames: no session, no Kafka, no clock."""
