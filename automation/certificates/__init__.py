"""Certificates that pods of services serve with: issued, renewed, and made again when somebody deletes one."""
