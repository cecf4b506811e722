"""One rank's life: its batch, its model, its steps and the checks it makes."""
