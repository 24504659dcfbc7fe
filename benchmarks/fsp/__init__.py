"""The measurements of the FSP paper (Figs. 7 to 15 and Table 2), made with real jobs."""
