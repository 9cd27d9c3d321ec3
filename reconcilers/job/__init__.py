"""An ElasticJob's turn: its workers, its phase and conditions, its end."""
