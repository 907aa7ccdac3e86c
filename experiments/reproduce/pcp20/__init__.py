"""PCP'20's evaluation (Galleguillos et al., section 5) reproduced."""
