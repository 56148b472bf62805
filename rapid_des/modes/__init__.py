"""How a program is executed: by which engine, and what is simulated less than once a rank."""
