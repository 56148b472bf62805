"""`rapid-des ui`: a page on this machine that asks what the command line asks.

command  the command: a port, an address with a token
server   what the page may ask, and who may ask
words    what is asked as the words of a command line
tasks    commands that run in processes of their own, and the folder that keeps what they said
worker   what these processes run
form     the keys of a job and a machine with values, units and meanings
answers  results as parts of the report's page
"""
