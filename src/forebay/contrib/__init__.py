"""Forebay inside other frameworks: one package each, which imports its framework; nothing else imports them."""
