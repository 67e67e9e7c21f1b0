"""How each sentence of the diagnosis is counted from what the generator made, by what the sentence is about."""
