from e2e.enginesim.cli import main

if __name__ == "__main__":
    main()
